"""The command line: one verb a user goal. Imports torch only inside the verbs that need it."""

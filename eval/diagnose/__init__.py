"""Diagnose: do environments and similarities say anything about variance in this pool? See `permutation` for the tests."""

"""The memory plan of a training run: what each device and the machine will hold, before anything starts."""

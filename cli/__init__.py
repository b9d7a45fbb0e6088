"""What people and machines start. A command's modules are loaded when it runs."""

import gc

# To load a command makes some hundred thousand objects that stay. To look for garbage among them at every 700th of
# them, Python's default, is a sixth of the time that takes.
gc.set_threshold(10_000, 20, 50)

"""Container runtimes: the command line and the environment of a process inside an image."""

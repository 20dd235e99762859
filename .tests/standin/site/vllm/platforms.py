"""The stand-in's platform."""


class StandinPlatform:
    device_type = "cpu"
    device_name = "standin"


current_platform = StandinPlatform()

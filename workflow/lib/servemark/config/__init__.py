"""The configuration: typed, validated once before anything runs, frozen afterwards."""

"""Make a configuration from an archive that measures its run again."""

"""What an archive says of itself, for programs and readers that have never seen one."""

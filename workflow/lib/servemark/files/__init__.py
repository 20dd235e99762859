"""Write files, and report a disk that refuses: full, read-only, private folders, folder names."""

"""Files and folders: full and read-only disks, locks, private folders, folder names."""

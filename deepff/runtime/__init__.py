"""What every room needs of the machine: files, progress, memory, processes."""

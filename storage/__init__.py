"""Files that outlive the process."""

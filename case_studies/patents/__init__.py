"""Patents and research spending: three kinds of firms, a gate between them, and their posterior."""

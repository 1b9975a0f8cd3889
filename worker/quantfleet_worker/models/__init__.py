"""Architecture knowledge as data: one small file a family."""

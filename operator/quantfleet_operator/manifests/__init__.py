"""Pure builders of child objects, one file a kind; what they return is what is applied."""

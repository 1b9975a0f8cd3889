"""What is measured, not tested: figures on the demo's real model and text."""

"""The data plane: the engine that calibrates, quantizes and writes one model on many ranks."""

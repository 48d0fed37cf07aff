"""MADlib's tables: of architectures, selections, custom functions and models."""

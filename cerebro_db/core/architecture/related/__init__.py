"""What models read of related tables: which inputs, and the layers that read the latest related rows."""

"""Adapters: small numbers that train within frozen layers."""

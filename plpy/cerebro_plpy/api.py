"""Every function that the SQL of the extension calls: ``api.NAME(plpy, …)``."""

from __future__ import annotations

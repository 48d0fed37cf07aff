"""What server, trainer and client share: pure Python with the standard library only, without database or framework.

Every other package may use it.
"""

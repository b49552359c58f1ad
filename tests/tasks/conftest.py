from samples import home, real

__all__ = ["home", "real"]

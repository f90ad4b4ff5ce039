"""As the package: 0.5.11 imports names of it when it starts."""

from sgl_kernel import __getattr__  # noqa: F401

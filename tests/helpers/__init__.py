"""What tests share: data, models, checks. No test file is imported; what two of them need lives here."""

import pkgutil

import pytest

# So that a failed `assert` in a helper says as much as one in a test.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)))

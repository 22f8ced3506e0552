"""The plugin that users get by installing perdure; here it is loaded from the checkout as well."""

from hypothesis import HealthCheck, settings

pytest_plugins = ["perdure.testing.plugin"]

# How long an example takes says how busy the machine is: what is right would fail on a slow day.
settings.register_profile("perdure", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("perdure")

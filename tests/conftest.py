"""The plugin that users get by installing perdure; here it is loaded from the checkout as well."""

import signal

from hypothesis import HealthCheck, settings

pytest_plugins = ["perdure.testing.plugin"]

# How long an example takes says how busy the machine is: what is right would fail on a slow day.
settings.register_profile("perdure", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("perdure")

# A shell starts what runs in the background with Ctrl-C ignored, and what that starts ignores it as well.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

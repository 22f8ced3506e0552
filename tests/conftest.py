"""The plugin that users get by installing perdure; here it is loaded from the checkout as well."""

pytest_plugins = ["perdure.testing.plugin"]

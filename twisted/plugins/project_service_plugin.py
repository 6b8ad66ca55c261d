"""The drop-in that offers ``twistd project-service``. It must not import the reactor, whose kind is chosen
after it has been read."""

from twisted.application.service import ServiceMaker

project_service = ServiceMaker(
    "project-service",
    "project_service.tap",
    "Authentication, object storage and a table REST API for one project.",
    "project-service",
)

"""The description of a schema in PostgREST's form of OpenAPI 2.0. PostgREST's reference: "OpenAPI"."""

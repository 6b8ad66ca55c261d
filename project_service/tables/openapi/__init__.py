"""The description of a schema as an OpenAPI 2.0 document in PostgREST's form. PostgREST's reference: "OpenAPI"."""

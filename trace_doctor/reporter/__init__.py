"""Reporter: the report for people and machines. Imports only `trace_doctor.report`."""

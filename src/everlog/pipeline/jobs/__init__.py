"""The jobs of the pipeline, one module each: functions on a Spark session, to be run again at will."""

"""Elastic gangs: `from holdfast.training.elastic.gang import ElasticGang`."""

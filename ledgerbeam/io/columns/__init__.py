"""The common parts of columnar formats: conversion of rows and records, schemas, and random access to row groups."""

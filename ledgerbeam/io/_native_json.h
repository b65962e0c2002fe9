/* Functions of _native_json.c that the module has; native.py documents them. */
PyObject *find_fields(PyObject *self, PyObject *args);
PyObject *join_rows(PyObject *self, PyObject *args);

/* Reading the four fields of a record object without asking its type for each of them again.
 *
 * Owns what it knows of the type that was seen last; the GIL must be held. Knows nothing of batches. */
#ifndef EVERLOG_RECORD_FIELDS_H
#define EVERLOG_RECORD_FIELDS_H

#include <Python.h>

enum { FIELD_DATA, FIELD_META, FIELD_TAG, FIELD_NODE, FIELD_COUNT };

/* Borrow the fields of `record` if its type keeps all of them in slots, as classes of msgspec and classes
 * with __slots__ do: then nothing runs that could change anything. Returns 1, or 0 if they have to be read
 * as attributes. Never raises. */
int record_fields(PyObject *record, PyObject **fields);

#endif

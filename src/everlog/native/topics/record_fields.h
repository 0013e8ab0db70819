/* Reading the four fields of a record object without asking its type for each of them again.
 *
 * Owns what it knows of the type that was seen last; the GIL must be held. Knows nothing of batches. */
#ifndef EVERLOG_RECORD_FIELDS_H
#define EVERLOG_RECORD_FIELDS_H

#include <Python.h>
#include <structmember.h>

enum { FIELD_DATA, FIELD_META, FIELD_TAG, FIELD_NODE, FIELD_COUNT };

typedef struct {
    PyTypeObject *type;
    unsigned int version; /* of the type's attributes; it is never given twice, so the type may be gone */
    int has_slots;
    Py_ssize_t offsets[FIELD_COUNT];
} type_layout;

static const char *const FIELD_NAMES[FIELD_COUNT] = {
    [FIELD_DATA] = "data", [FIELD_META] = "meta", [FIELD_TAG] = "tag", [FIELD_NODE] = "node"};
static type_layout last_seen;

/* The offset of a slot, 0 if reading this attribute is anything else than taking an object from a slot. */
static Py_ssize_t slot_offset(PyTypeObject *type, const char *name)
{
    PyObject *key = PyUnicode_InternFromString(name);
    if (key == NULL)
        return 0;
    PyObject *found = _PyType_Lookup(type, key);
    Py_DECREF(key);
    if (found == NULL || !Py_IS_TYPE(found, &PyMemberDescr_Type))
        return 0;
    const PyMemberDescrObject *slot = (const PyMemberDescrObject *)found;
    if (!PyType_IsSubtype(type, PyDescr_TYPE(slot)))
        return 0;
    if (slot->d_member->type != T_OBJECT_EX || (slot->d_member->flags & READ_RESTRICTED))
        return 0;
    return slot->d_member->offset;
}

static void look_at(PyTypeObject *type)
{
    last_seen = (type_layout){.type = type, .has_slots = type->tp_getattro == PyObject_GenericGetAttr};
    for (int field = 0; field < FIELD_COUNT && last_seen.has_slots; field++) {
        last_seen.offsets[field] = slot_offset(type, FIELD_NAMES[field]);
        last_seen.has_slots = last_seen.offsets[field] > 0;
    }
    PyErr_Clear(); /* without memory for a name the attributes are read the other way */
    last_seen.version = type->tp_version_tag;
}

/* Borrow the fields of `record` if its type keeps all of them in slots, as classes of msgspec and classes
 * with __slots__ do: then nothing runs that could change anything. Returns 1, or 0 if they have to be read
 * as attributes. Never raises. */
static int record_fields(PyObject *record, PyObject **fields)
{
    PyTypeObject *type = Py_TYPE(record);
    /* 0 is the version of a type that was changed, or that was not looked at yet. */
    if (type != last_seen.type || type->tp_version_tag != last_seen.version || last_seen.version == 0)
        look_at(type);
    if (!last_seen.has_slots)
        return 0;
    for (int field = 0; field < FIELD_COUNT; field++) {
        fields[field] = *(PyObject **)((char *)record + last_seen.offsets[field]);
        if (fields[field] == NULL)
            return 0; /* an empty slot: the attribute tells what is wrong */
    }
    return 1;
}

#endif

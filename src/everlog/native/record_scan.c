/* Finding records in JSON text; see record_scan.h. */
#include "record_scan.h"

#include <string.h>

/* Longer numbers may be beyond what the full decoder takes, so it is asked. */
enum { DIGITS_MAX = 18, EXPONENT_DIGITS_MAX = 2 };

typedef struct {
    const uint8_t *at;
    const uint8_t *end;
} cursor;

typedef struct { /* a text in the body; NULL = none */
    const uint8_t *base;
    size_t length;
} span;

static inline void skip_white(cursor *text)
{
    while (text->at < text->end &&
           (*text->at == ' ' || *text->at == '\n' || *text->at == '\r' || *text->at == '\t'))
        text->at++;
}

/* Take one byte, and the white space before it. */
static inline int take(cursor *text, uint8_t byte)
{
    skip_white(text);
    if (text->at >= text->end || *text->at != byte)
        return 0;
    text->at++;
    return 1;
}

static inline int take_word(cursor *text, const char *word, size_t length)
{
    if ((size_t)(text->end - text->at) < length || memcmp(text->at, word, length) != 0)
        return 0;
    text->at += length;
    return 1;
}

static inline int is_hex(uint8_t byte)
{
    uint8_t lower = byte | 0x20;
    return (byte >= '0' && byte <= '9') || (lower >= 'a' && lower <= 'f');
}

static int take_escape(cursor *text)
{
    if (text->end - text->at < 2)
        return 0;
    uint8_t kind = text->at[1];
    text->at += 2;
    if (kind != 'u')
        return kind != 0 && strchr("\"\\/bfnrt", kind) != NULL;
    if (text->end - text->at < 4)
        return 0;
    for (int place = 0; place < 4; place++)
        if (!is_hex(text->at[place]))
            return 0;
    text->at += 4;
    return 1;
}

/* A string behind its first quote. */
static int take_string(cursor *text)
{
    while (text->at < text->end) {
        uint8_t byte = *text->at;
        if (byte == '"') {
            text->at++;
            return 1;
        }
        if (byte < 0x20 || (byte == '\\' && !take_escape(text)))
            return 0;
        if (byte != '\\')
            text->at++;
    }
    return 0;
}

static int take_digits(cursor *text, int max)
{
    int digits = 0;
    while (text->at < text->end && *text->at >= '0' && *text->at <= '9') {
        text->at++;
        if (++digits > max)
            return 0;
    }
    return digits;
}

static int take_number(cursor *text)
{
    if (text->at < text->end && *text->at == '-')
        text->at++;
    int starts_with_zero = text->at < text->end && *text->at == '0';
    int digits = take_digits(text, DIGITS_MAX);
    if (digits == 0 || (starts_with_zero && digits > 1))
        return 0;
    if (text->at < text->end && *text->at == '.') {
        text->at++;
        if (!take_digits(text, DIGITS_MAX))
            return 0;
    }
    if (text->at < text->end && (*text->at | 0x20) == 'e') {
        text->at++;
        if (text->at < text->end && (*text->at == '+' || *text->at == '-'))
            text->at++;
        if (!take_digits(text, EXPONENT_DIGITS_MAX))
            return 0;
    }
    return 1;
}

static int take_value(cursor *text);

/* An object or array behind its first bracket. */
static int take_members(cursor *text, uint8_t closing)
{
    if (take(text, closing))
        return 1;
    do {
        if (closing == '}' && !(take(text, '"') && take_string(text) && take(text, ':')))
            return 0;
        if (!take_value(text))
            return 0;
    } while (take(text, ','));
    return take(text, closing);
}

static int take_value(cursor *text)
{
    skip_white(text);
    if (text->at >= text->end)
        return 0;
    switch (*text->at) {
    case '"':
        text->at++;
        return take_string(text);
    case '{':
        text->at++;
        return take_members(text, '}');
    case '[':
        text->at++;
        return take_members(text, ']');
    case 't':
        return take_word(text, "true", 4);
    case 'f':
        return take_word(text, "false", 5);
    case 'n':
        return take_word(text, "null", 4);
    default:
        return take_number(text);
    }
}

/* Any value, as the text it is. */
static int take_text(cursor *text, span *value)
{
    skip_white(text);
    value->base = text->at;
    if (!take_value(text))
        return 0;
    value->length = (size_t)(text->at - value->base);
    return 1;
}

/* A string without escapes, which stands for itself, or null. */
static int take_name(cursor *text, span *name)
{
    skip_white(text);
    if (take_word(text, "null", 4))
        return 1;
    if (!take(text, '"'))
        return 0;
    const uint8_t *start = text->at;
    while (text->at < text->end && *text->at != '"') {
        if (*text->at < 0x20 || *text->at == '\\')
            return 0;
        text->at++;
    }
    size_t length = (size_t)(text->at - start);
    if (text->at >= text->end || length > UINT16_MAX)
        return 0;
    text->at++;
    *name = (span){start, length};
    return 1;
}

static inline int key_is(const span *key, const char *name, size_t length)
{
    return key->length == length && memcmp(key->base, name, length) == 0;
}

static inline int take_key(cursor *text, span *key)
{
    *key = (span){NULL, 0};
    return take_name(text, key) && key->base != NULL && take(text, ':');
}

static inline int is_null(const span *value)
{
    return value->length == 4 && memcmp(value->base, "null", 4) == 0;
}

/* One record behind its bracket. A field that comes twice makes it not plain. */
static int take_record(cursor *text, batch_record *record)
{
    enum { DATA = 1, TAG = 2, NODE = 4, META = 8 };
    span key, data = {0}, tag = {0}, node = {0}, meta = {0};
    int seen = 0, field;
    do {
        if (!take_key(text, &key))
            return 0;
        int taken;
        if (key_is(&key, "data", 4)) {
            field = DATA;
            taken = take_text(text, &data);
        } else if (key_is(&key, "tag", 3)) {
            field = TAG;
            taken = take_name(text, &tag);
        } else if (key_is(&key, "node", 4)) {
            field = NODE;
            taken = take_name(text, &node);
        } else if (key_is(&key, "meta", 4)) {
            field = META;
            taken = take_text(text, &meta);
        } else {
            return 0;
        }
        if (!taken || (seen & field))
            return 0;
        seen |= field;
    } while (take(text, ','));
    if (!(seen & DATA) || data.length > UINT32_MAX || meta.length > UINT32_MAX || !take(text, '}'))
        return 0;
    if (meta.base != NULL && is_null(&meta))
        meta = (span){NULL, 0};
    *record = (batch_record){.data = data.base, .data_len = (uint32_t)data.length,
                             .meta = meta.base, .meta_len = (uint32_t)meta.length,
                             .tag = tag.base, .tag_len = (uint16_t)tag.length,
                             .node = node.base, .node_len = (uint16_t)node.length};
    return 1;
}

static size_t take_records(cursor *text, batch_record *records, size_t capacity)
{
    size_t count = 0;
    if (!take(text, '['))
        return 0;
    do {
        if (count == capacity || !take(text, '{') || !take_record(text, &records[count]))
            return 0;
        count++;
    } while (take(text, ','));
    return take(text, ']') ? count : 0;
}

size_t records_scan(const uint8_t *base, size_t length, batch_record *records, size_t capacity)
{
    cursor text = {base, base + length};
    span key, node = {0};
    size_t count = 0;
    int has_node = 0;
    if (!take(&text, '{'))
        return 0;
    do {
        if (!take_key(&text, &key))
            return 0;
        if (key_is(&key, "records", 7) && count == 0) {
            count = take_records(&text, records, capacity);
            if (count == 0)
                return 0;
        } else if (key_is(&key, "node", 4) && !has_node) {
            has_node = 1;
            if (!take_name(&text, &node))
                return 0;
        } else {
            return 0;
        }
    } while (take(&text, ','));
    int closed = take(&text, '}');
    skip_white(&text);
    if (!closed || text.at != text.end)
        return 0;
    for (size_t place = 0; node.base != NULL && place < count; place++) {
        if (records[place].node == NULL) {
            records[place].node = node.base;
            records[place].node_len = (uint16_t)node.length;
        }
    }
    return count;
}

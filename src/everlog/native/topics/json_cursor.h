/* Stepping through JSON text of a known shape: what other scanners are made of.
 *
 * Every `take_*` moves the cursor behind what it takes and returns 0, with the cursor anywhere, if something
 * else is there. Strict where the full decoder is strict, and stricter in places: whatever is not taken here
 * is left to that decoder. Nesting is not bounded: the text must have passed `json_check`. */
#ifndef EVERLOG_JSON_CURSOR_H
#define EVERLOG_JSON_CURSOR_H

#include <stddef.h>
#include <stdint.h>
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

static inline int take_escape(cursor *text)
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
static inline int take_string(cursor *text)
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

static inline int take_digits(cursor *text, int max)
{
    int digits = 0;
    while (text->at < text->end && *text->at >= '0' && *text->at <= '9') {
        text->at++;
        if (++digits > max)
            return 0;
    }
    return digits;
}

static inline int take_number(cursor *text)
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

static inline int take_value(cursor *text);

/* An object or array behind its first bracket. */
static inline int take_members(cursor *text, uint8_t closing)
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

static inline int take_value(cursor *text)
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
static inline int take_text(cursor *text, span *value)
{
    skip_white(text);
    value->base = text->at;
    if (!take_value(text))
        return 0;
    value->length = (size_t)(text->at - value->base);
    return 1;
}

/* A string without escapes, which stands for itself, or null. */
static inline int take_name(cursor *text, span *name)
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

#endif

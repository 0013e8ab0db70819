/* Rows of delimited text to columns of integers in one pass over the bytes: find the line, cut it into
 * fields, convert the wanted ones. Knows no file and no venue. Included by events.pyx only. */
#ifndef EVERLOG_CSV_ROWS_H
#define EVERLOG_CSV_ROWS_H

#include <stdint.h>
#include <string.h>

#define CSV_MAX_DECIMALS 18
#define FNV_BASIS 0xCBF29CE484222325ull
#define FNV_PRIME 0x100000001B3ull
#define EXPONENT_MAX 64    /* beyond it every value is 0 or too large */
#define DIGITS_THAT_FIT 19 /* 10^19 is less than 2^64 */

typedef enum {
    CSV_UNSIGNED = 0,   /* digits -> u64 */
    CSV_SIGNED = 1,     /* optional minus, digits -> i64, stored in the bits of the u64 */
    CSV_DECIMAL = 2,    /* exact decimal -> integer and its number of decimals */
    CSV_PRICE = 3,      /* as CSV_DECIMAL, with an optional minus as CSV_SIGNED */
    CSV_CHOICE = 4,     /* one of the column's texts -> its code */
    CSV_IDENTIFIER = 5, /* u64 as it is, other text -> its FNV-1a, empty -> 0 */
    CSV_HASH = 6,       /* any text -> its FNV-1a */
} csv_kind;

typedef enum {
    CSV_OK = 0,
    CSV_FIELD_COUNT = 1, /* not as many fields as a row must have */
    CSV_NO_NUMBER = 2,
    CSV_NEGATIVE = 3,
    CSV_TOO_LARGE = 4, /* does not fit into 64 bits */
    CSV_UNKNOWN_CHOICE = 5,
    CSV_BAD_QUOTE = 6,
} csv_problem;

typedef struct {
    const char *text;
    uint64_t length;
    uint8_t code;
} csv_choice;

typedef struct {
    uint64_t field; /* place in the row; columns are in ascending order of it */
    csv_kind kind;
    const csv_choice *choices;
    uint64_t choice_count;
    uint64_t *values;
    uint8_t *extras; /* decimals of CSV_DECIMAL and CSV_PRICE, code of CSV_CHOICE */
} csv_column;

typedef struct {
    uint64_t rows;     /* complete rows stored */
    uint64_t consumed; /* bytes of whole lines that are done with */
    uint64_t lines;    /* lines that these bytes hold, blank ones included */
    uint64_t field;    /* where the problem is */
    csv_problem problem;
} csv_result;

typedef struct {
    const char *start, *end;
} span;

static inline int is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static inline int is_digit(char c)
{
    return (unsigned char)(c - '0') < 10;
}

static inline span trimmed(const char *start, const char *end)
{
    while (start < end && is_blank(*start))
        start++;
    while (end > start && is_blank(end[-1]))
        end--;
    return (span){start, end};
}

/* Fields may stand in quotes, but quotes hold nothing special: no delimiter, no line break. */
static inline csv_problem unquoted(span *field)
{
    if (field->start == field->end || *field->start != '"')
        return CSV_OK;
    if (field->end - field->start < 2 || field->end[-1] != '"')
        return CSV_BAD_QUOTE;
    *field = trimmed(field->start + 1, field->end - 1);
    return CSV_OK;
}

/* 0, and nothing changed, if there is no room. */
static inline int append_digit(uint64_t *value, unsigned digit)
{
    uint64_t longer;
    if (__builtin_mul_overflow(*value, (uint64_t)10, &longer) ||
        __builtin_add_overflow(longer, (uint64_t)digit, &longer))
        return 0;
    *value = longer;
    return 1;
}

/* So few digits that they fit into 64 bits whatever they are: no look at each of them. 0 for anything else.
 */
static inline int short_digits(const char *at, const char *end, uint64_t *value)
{
    uint64_t number = 0;
    unsigned other = 0;
    if (end - at > DIGITS_THAT_FIT)
        return 0;
    for (; at < end; at++) {
        unsigned digit = (unsigned char)(*at - '0');
        other |= digit > 9;
        number = number * 10 + digit;
    }
    *value = number;
    return !other;
}

static csv_problem read_unsigned(span text, uint64_t *value)
{
    uint64_t number = 0;
    int fits = 1;
    if (text.start == text.end)
        return CSV_NO_NUMBER;
    if (short_digits(text.start, text.end, value))
        return CSV_OK;
    for (const char *at = text.start; at < text.end; at++) {
        if (!is_digit(*at))
            return *text.start == '-' ? CSV_NEGATIVE : CSV_NO_NUMBER;
        fits = fits && append_digit(&number, (unsigned)(*at - '0'));
    }
    if (!fits)
        return CSV_TOO_LARGE;
    *value = number;
    return CSV_OK;
}

/* Takes the minus off a number that may have one; a second one is none. */
static inline int take_minus(span *text)
{
    int negative = text->end - text->start > 1 && text->start[0] == '-' && text->start[1] != '-';
    text->start += negative;
    return negative;
}

/* Gives a number that was read without its minus its sign. */
static inline csv_problem with_sign(csv_problem problem, int negative, uint64_t *value)
{
    if (problem != CSV_OK)
        return problem == CSV_NEGATIVE ? CSV_NO_NUMBER : problem;
    if (*value > (uint64_t)INT64_MAX)
        return CSV_TOO_LARGE;
    *value = negative ? -*value : *value;
    return CSV_OK;
}

/* The text's digits without the point: kept as long as they matter, zeros only once a digit
 * follows them, so that `1.500000000000000000000` is 15 with one decimal. */
typedef struct {
    uint64_t value;
    int64_t decimals; /* may be negative after an exponent */
    int lost;         /* digits in front of the point did not fit into 64 bits */
    int cut;          /* decimals did not fit, of those that the protocol could hold */
} digits;

static csv_problem read_exponent(const char *at, const char *end, int64_t *exponent)
{
    int negative = at < end && *at == '-';
    int64_t number = 0;
    if (at < end && (*at == '-' || *at == '+'))
        at++;
    if (at == end)
        return CSV_NO_NUMBER;
    for (; at < end; at++) {
        if (!is_digit(*at))
            return CSV_NO_NUMBER;
        if (number <= EXPONENT_MAX)
            number = number * 10 + (*at - '0');
    }
    *exponent = negative ? -number : number;
    return CSV_OK;
}

static csv_problem read_digits(span text, digits *out)
{
    int64_t exponent = 0, places = 0, zeros = 0;
    int seen = 0, point = 0, full = 0;
    uint64_t value = 0;
    const char *at = text.start;
    for (; at < text.end; at++) {
        if (is_digit(*at)) {
            seen = 1;
            if (point && *at == '0') {
                zeros++;
                continue;
            }
            for (; zeros > 0 && !full; zeros--) {
                full = !append_digit(&value, 0);
                places += !full;
            }
            full = full || !append_digit(&value, (unsigned)(*at - '0'));
            places += point && !full;
            out->lost |= full && !point;
        } else if (*at == '.' && !point) {
            point = 1;
        } else {
            break;
        }
    }
    if (!seen)
        return CSV_NO_NUMBER;
    if (at < text.end) {
        if (*at != 'e' && *at != 'E')
            return CSV_NO_NUMBER;
        csv_problem problem = read_exponent(at + 1, text.end, &exponent);
        if (problem != CSV_OK)
            return problem;
    }
    /* Decimals that found no room only matter if the protocol could hold them. */
    if (full && !out->lost && places - exponent < CSV_MAX_DECIMALS)
        out->cut = 1;
    out->value = value;
    out->decimals = places - exponent;
    return CSV_OK;
}

/* Bring the digits to `decimals`; digits beyond are cut off. */
static csv_problem at_scale(digits number, int64_t decimals, uint64_t *value)
{
    uint64_t result = number.value;
    for (; number.decimals > decimals && result != 0; number.decimals--)
        result /= 10;
    for (; number.decimals < decimals && result != 0; number.decimals++)
        if (__builtin_mul_overflow(result, (uint64_t)10, &result))
            return CSV_TOO_LARGE;
    *value = result;
    return CSV_OK;
}

static csv_problem read_number(span text, digits *number)
{
    int negative = text.start < text.end && *text.start == '-';
    *number = (digits){0, 0, 0, 0};
    csv_problem problem = read_digits((span){text.start + negative, text.end}, number);
    if (problem != CSV_OK)
        return problem;
    if (negative && number->value != 0)
        return CSV_NEGATIVE;
    return number->lost ? CSV_TOO_LARGE : CSV_OK;
}

/* `123.4500` with few digits, which nearly every price and size is: 12345 with two decimals. 0 for anything
 * else, which is not looked at any further here. */
static inline int short_decimal(span text, uint64_t *value, uint8_t *decimals)
{
    const char *point = text.start, *end = text.end;
    uint64_t whole, rest, power = 1;
    while (point < end && is_digit(*point))
        point++;
    if (point == text.start || end - text.start > DIGITS_THAT_FIT)
        return 0;
    if (point == end) {
        *decimals = 0;
        return short_digits(text.start, end, value);
    }
    if (*point != '.' || point + 1 == end)
        return 0;
    while (end[-1] == '0')
        end--;
    if (!short_digits(text.start, point, &whole) || !short_digits(point + 1, end, &rest))
        return 0;
    for (const char *at = point + 1; at < end; at++)
        power *= 10;
    *value = whole * power + rest;
    *decimals = (uint8_t)(end - point - 1);
    return 1;
}

static csv_problem read_decimal(span text, uint64_t *value, uint8_t *decimals)
{
    digits number;
    if (short_decimal(text, value, decimals))
        return CSV_OK;
    csv_problem problem = read_number(text, &number);
    if (problem != CSV_OK)
        return problem;
    if (number.cut)
        return CSV_TOO_LARGE;
    int64_t scale = number.decimals < 0 ? 0 : number.decimals;
    if (scale > CSV_MAX_DECIMALS)
        scale = CSV_MAX_DECIMALS;
    problem = at_scale(number, scale, value);
    for (; scale > 0 && *value % 10 == 0 && problem == CSV_OK; scale--)
        *value /= 10;
    *decimals = (uint8_t)scale;
    return problem;
}

static csv_problem read_choice(span text, const csv_column *column, uint8_t *code)
{
    uint64_t length = (uint64_t)(text.end - text.start);
    for (uint64_t i = 0; i < column->choice_count; i++) {
        const csv_choice *choice = &column->choices[i];
        if (choice->length == length && memcmp(choice->text, text.start, length) == 0) {
            *code = choice->code;
            return CSV_OK;
        }
    }
    return CSV_UNKNOWN_CHOICE;
}

static void read_hash(span text, uint64_t *value)
{
    uint64_t hash = FNV_BASIS;
    for (const char *at = text.start; at < text.end; at++)
        hash = (hash ^ (uint8_t)*at) * FNV_PRIME;
    *value = hash;
}

static void read_identifier(span text, uint64_t *value)
{
    *value = 0;
    if (text.start < text.end && read_unsigned(text, value) != CSV_OK)
        read_hash(text, value);
}

static csv_problem convert(span text, const csv_column *column, uint64_t row)
{
    csv_problem problem = unquoted(&text);
    uint64_t *value = &column->values[row];
    int negative;
    if (problem != CSV_OK)
        return problem;
    switch (column->kind) {
    case CSV_UNSIGNED:
        return read_unsigned(text, value);
    case CSV_SIGNED:
        negative = take_minus(&text);
        return with_sign(read_unsigned(text, value), negative, value);
    case CSV_DECIMAL:
        return read_decimal(text, value, &column->extras[row]);
    case CSV_PRICE:
        negative = take_minus(&text);
        return with_sign(read_decimal(text, value, &column->extras[row]), negative, value);
    case CSV_CHOICE:
        return read_choice(text, column, &column->extras[row]);
    case CSV_IDENTIFIER:
        read_identifier(text, value);
        return CSV_OK;
    case CSV_HASH:
        read_hash(text, value);
        return CSV_OK;
    }
    return CSV_NO_NUMBER;
}

/* Convert the wanted fields of one line. `*field` names the place of a problem. */
static csv_problem parse_line(span line, char delimiter, uint64_t field_count, const csv_column *columns,
                              uint64_t column_count, uint64_t row, uint64_t *field)
{
    const csv_column *column = columns, *last = columns + column_count;
    csv_problem first = CSV_OK;
    uint64_t place = 0;
    const char *start = line.start;
    for (;;) {
        const char *end = start;
        while (end < line.end && *end != delimiter)
            end++;
        if (column < last && column->field == place && first == CSV_OK) {
            first = convert(trimmed(start, end), column++, row);
            *field = place;
        }
        place++;
        if (end == line.end)
            break;
        start = end + 1;
    }
    /* A row cut in two has bad numbers too; that it is cut is the better explanation. */
    if (place != field_count) {
        *field = place;
        return CSV_FIELD_COUNT;
    }
    return first;
}

/* Store rows until the text holds no further whole line, `capacity` rows are stored or a row is
 * bad. A bad row is not consumed. `row_lines` gets the line of each row, counted from 0. */
static void csv_parse(const char *text, uint64_t length, char delimiter, uint64_t field_count,
                      const csv_column *columns, uint64_t column_count, uint32_t *row_lines,
                      uint64_t capacity, csv_result *result)
{
    const char *at = text, *end = text + length;
    *result = (csv_result){0, 0, 0, 0, CSV_OK};
    while (at < end && result->rows < capacity) {
        const char *stop = memchr(at, '\n', (uint64_t)(end - at));
        if (stop == NULL)
            break;
        span line = trimmed(at, stop);
        if (line.start < line.end) {
            result->problem =
                parse_line(line, delimiter, field_count, columns, column_count, result->rows, &result->field);
            if (result->problem != CSV_OK)
                break;
            row_lines[result->rows++] = (uint32_t)result->lines;
        }
        result->lines++;
        at = stop + 1;
    }
    result->consumed = (uint64_t)(at - text);
}

#endif

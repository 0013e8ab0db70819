/* Rows of delimited text to columns of integers, in one pass. Knows no file and no venue. */
#ifndef EVERLOG_CSV_ROWS_H
#define EVERLOG_CSV_ROWS_H

#include <stdint.h>

#define CSV_MAX_DECIMALS 18

typedef enum {
    CSV_UNSIGNED = 0,   /* digits -> u64 */
    CSV_SIGNED = 1,     /* optional minus, digits -> i64, stored in the bits of the u64 */
    CSV_DECIMAL = 2,    /* exact decimal -> integer and its number of decimals */
    CSV_FIXED = 3,      /* exact decimal -> integer at the column's scale, further digits cut off */
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
    int scale;            /* of CSV_FIXED */
    int negative_is_zero; /* a number with a minus reads as 0 instead of being refused */
    const csv_choice *choices;
    uint64_t choice_count;
    uint64_t *values;
    uint8_t *extras; /* decimals of CSV_DECIMAL, code of CSV_CHOICE */
} csv_column;

typedef struct {
    uint64_t rows;     /* complete rows stored */
    uint64_t consumed; /* bytes of whole lines that are done with */
    uint64_t lines;    /* lines that these bytes hold, blank ones included */
    uint64_t field;    /* where the problem is */
    csv_problem problem;
} csv_result;

/* Store rows until the text holds no further whole line, `capacity` rows are stored or a row is
 * bad. A bad row is not consumed. `row_lines` gets the line of each row, counted from 0. */
void csv_parse(const char *text, uint64_t length, char delimiter, uint64_t field_count,
               const csv_column *columns, uint64_t column_count, uint32_t *row_lines,
               uint64_t capacity, csv_result *result);

#endif

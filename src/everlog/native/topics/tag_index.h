/* Which live records carry a tag: a tree of tags, and for each the chain of its seqs.
 *
 * Every tag has one leaf with its newest seq; older seqs follow through tag_prev of the log index.
 * The tree branches at the bytes in which tags differ, so exact and prefix questions and inserting
 * cost the length of a tag, never a rebuild or a merge. Nothing is done when a record dies: chains
 * are cut, and tags without a live record dropped, when they are met or swept, so the memory
 * follows the live records. */
#ifndef EVERLOG_TAG_INDEX_H
#define EVERLOG_TAG_INDEX_H

#include "log_index.h"

typedef struct tag_index tag_index;

tag_index *tag_index_new(void); /* NULL without memory */
void tag_index_free(tag_index *tags);
size_t tag_index_memory(const tag_index *tags);  /* bytes allocated, what malloc adds included */
uint64_t tag_index_count(const tag_index *tags); /* tags held, dead ones not yet dropped included */

/* The record `seq` (its entry already pushed) carries `tag`. Returns 0, or -1 without memory. */
int tag_index_push(tag_index *tags, log_index *index, const uint8_t *tag, size_t length, uint64_t seq);
/* Take back a push: `seq` is about to be popped from the index, as are all newer ones. */
void tag_index_pop(tag_index *tags, log_index *index, const uint8_t *tag, size_t length, uint64_t seq);
/* Look at up to `steps` tags and drop the dead ones, as long as there are more tags than live
 * records. Returns how many more there still are. */
uint64_t tag_index_sweep(tag_index *tags, log_index *index, uint64_t steps);

typedef struct { /* a growing list of seqs */
    uint64_t *seqs;
    size_t count, capacity;
} seq_list;

/* Append to `found` the live seqs below `before_seq` whose tag is exactly `tag` (or, with `prefix`,
 * starts with it), ascending within a tag. Looks at up to `steps` (at least 2) tags and records. Returns 0,
 * -1 without memory, 1 if there are more: of one tag from `*from_seq` (0 at first) down, of a prefix any. */
int tag_index_find(tag_index *tags, log_index *index, const uint8_t *tag, size_t length, int prefix,
                   uint64_t before_seq, uint64_t steps, uint64_t *from_seq, seq_list *found);

#endif

/* The tree of tags and the chains of their seqs; see tag_index.h.
 *
 * A node stands for the bytes that all tags below it share; `depth` is their number, so a node
 * stores neither the bytes nor the way there. Going down therefore trusts until it has reached a
 * leaf, which holds the whole tag and is compared. Children are in no order: answers are sorted by
 * seq, not by tag. Every node has at least two ways on, a tag that ends at it being one. */
#include "tag_index.h"

#include <stdlib.h>
#include <string.h>

#define DIRECT 256u          /* a node of this capacity has one child per byte value and no keys */
#define LARGEST_SEARCHED 64u /* capacity of the largest node whose keys are searched */
#define SMALLEST 2u
#define SWEEP_PER_NEW_TAG 4u /* more than one, so that sweeping overtakes inserting */
#define SWEEP_SLACK 64u      /* dead tags that are not worth looking for */
#define REPEATED(byte) (0x0101010101010101u * (byte))

typedef struct tag_leaf tag_leaf;
struct tag_leaf {
    uint64_t newest;          /* seq */
    tag_leaf *before, *after; /* ring of all leaves, in the order in which they are swept */
    uint16_t length;
    uint8_t text[];
};

typedef uintptr_t tag_ref; /* a node, or a leaf with the lowest bit set; 0 = none */

typedef struct {
    tag_leaf *end; /* the tag that ends here, or NULL */
    uint16_t depth;
    uint16_t count; /* children */
    uint16_t capacity;
    /* One per child, unless DIRECT; the children follow. First, so that they share a line of cache
     * with the head: going down waits for memory more than for anything else. */
    _Alignas(8) uint8_t keys[];
} tag_node;

struct tag_index {
    tag_ref root;
    tag_leaf *oldest; /* of the ring: looked at next */
    uint64_t count;
    size_t memory_bytes;
};

/* --- Memory ------------------------------------------------------------------------------------------ */

/* What malloc takes for a request: its own word, and sixteen at a time. */
static size_t allocated(size_t bytes)
{
    size_t taken = (bytes + sizeof(size_t) + 15) & ~(size_t)15;
    return taken < 32 ? 32 : taken;
}

static void *take(tag_index *tags, size_t bytes)
{
    void *memory = malloc(bytes);
    if (memory != NULL)
        tags->memory_bytes += allocated(bytes);
    return memory;
}

static void give_back(tag_index *tags, void *memory, size_t bytes)
{
    tags->memory_bytes -= allocated(bytes);
    free(memory);
}

static size_t leaf_bytes(size_t length)
{
    return offsetof(tag_leaf, text) + length;
}

static inline size_t key_bytes(size_t capacity)
{
    return capacity == DIRECT ? 0 : capacity < 8 ? 8 : capacity; /* searched eight at a time */
}

static size_t node_bytes(size_t capacity)
{
    return offsetof(tag_node, keys) + key_bytes(capacity) + capacity * sizeof(tag_ref);
}

static inline int is_leaf(tag_ref ref)
{
    return (int)(ref & 1);
}

static inline tag_leaf *leaf_of(tag_ref ref)
{
    return (tag_leaf *)(ref & ~(tag_ref)1);
}

static inline tag_node *node_of(tag_ref ref)
{
    return (tag_node *)ref;
}

static inline tag_ref ref_of(tag_leaf *leaf)
{
    return (tag_ref)leaf | 1;
}

/* --- The ring ---------------------------------------------------------------------------------------- */

/* Insert as the last to be swept. */
static void ring_add(tag_index *tags, tag_leaf *leaf)
{
    if (tags->oldest == NULL) {
        leaf->before = leaf->after = leaf;
        tags->oldest = leaf;
        return;
    }
    leaf->after = tags->oldest;
    leaf->before = tags->oldest->before;
    leaf->before->after = leaf;
    leaf->after->before = leaf;
}

static void ring_remove(tag_index *tags, tag_leaf *leaf)
{
    if (leaf->after == leaf) {
        tags->oldest = NULL;
        return;
    }
    leaf->before->after = leaf->after;
    leaf->after->before = leaf->before;
    if (tags->oldest == leaf)
        tags->oldest = leaf->after;
}

/* --- Nodes ------------------------------------------------------------------------------------------- */

static inline tag_ref *node_children(const tag_node *node)
{
    return (tag_ref *)(node->keys + key_bytes(node->capacity));
}

/* Where the child for `byte` hangs, NULL if there is none. */
static inline tag_ref *child_slot(tag_node *node, uint8_t byte)
{
    tag_ref *children = node_children(node);
    if (node->capacity == DIRECT)
        return children[byte] ? &children[byte] : NULL;
    for (size_t at = 0; at < node->count; at += 8) {
        uint64_t word;
        memcpy(&word, node->keys + at, sizeof word);
        word ^= REPEATED(byte);
        uint64_t zero = (word - REPEATED(1u)) & ~word & REPEATED(0x80u); /* exact up to the lowest */
        if (zero != 0) {
            size_t place = at + (size_t)__builtin_ctzll(zero) / 8;
            return place < node->count ? &children[place] : NULL; /* beyond count: left over */
        }
    }
    return NULL;
}

/* Some child; the node must have one. */
static tag_ref any_child(const tag_node *node)
{
    const tag_ref *child = node_children(node);
    while (*child == 0) /* only a DIRECT node has gaps */
        child++;
    return *child;
}

static tag_node *node_new(tag_index *tags, size_t capacity, size_t depth)
{
    size_t bytes = node_bytes(capacity);
    tag_node *node = take(tags, bytes);
    if (node == NULL)
        return NULL;
    memset(node, 0, bytes);
    node->depth = (uint16_t)depth;
    node->capacity = (uint16_t)capacity;
    return node;
}

/* Add a child for a byte that has none; there must be room. */
static void put_child(tag_node *node, uint8_t byte, tag_ref child)
{
    if (node->capacity == DIRECT) {
        node_children(node)[byte] = child;
    } else {
        node_children(node)[node->count] = child;
        node->keys[node->count] = byte;
    }
    node->count++;
}

/* Replace the node at `slot` by one of another capacity. Returns 0, or -1 without memory. */
static int resize_node(tag_index *tags, tag_ref *slot, size_t capacity)
{
    tag_node *old = node_of(*slot);
    tag_node *node = node_new(tags, capacity, old->depth);
    if (node == NULL)
        return -1;
    node->end = old->end;
    const tag_ref *children = node_children(old);
    if (old->capacity == DIRECT) {
        for (size_t byte = 0; byte < DIRECT; byte++)
            if (children[byte])
                put_child(node, (uint8_t)byte, children[byte]);
    } else {
        for (size_t place = 0; place < old->count; place++)
            put_child(node, old->keys[place], children[place]);
    }
    give_back(tags, old, node_bytes(old->capacity));
    *slot = (tag_ref)node;
    return 0;
}

static int make_room(tag_index *tags, tag_ref *slot)
{
    const tag_node *node = node_of(*slot);
    if (node->count < node->capacity)
        return 0;
    return resize_node(tags, slot, node->capacity == LARGEST_SEARCHED ? DIRECT : node->capacity * 2u);
}

static void take_child(tag_node *node, tag_ref *child)
{
    node->count--;
    if (node->capacity == DIRECT) {
        *child = 0;
        return;
    }
    *child = node_children(node)[node->count];
    node->keys[child - node_children(node)] = node->keys[node->count];
}

/* After something was taken from the node at `slot`: a node with one way on is no node. */
static void tidy_node(tag_index *tags, tag_ref *slot)
{
    tag_node *node = node_of(*slot);
    if (node->count + (node->end != NULL) == 1) {
        *slot = node->end != NULL ? ref_of(node->end) : any_child(node);
        give_back(tags, node, node_bytes(node->capacity));
    } else if (node->capacity > SMALLEST && node->count * 4u <= node->capacity) {
        size_t smaller = node->capacity == DIRECT ? LARGEST_SEARCHED : node->capacity / 2u;
        (void)resize_node(tags, slot, smaller); /* without memory it just stays large */
    }
}

/* --- The tree ---------------------------------------------------------------------------------------- */

static int leaf_is(const tag_leaf *leaf, const uint8_t *tag, size_t length)
{
    return leaf->length == length && memcmp(leaf->text, tag, length) == 0;
}

/* A leaf that shares at least as much with `tag` as any other; the tree must not be empty. */
static tag_leaf *nearest_leaf(const tag_index *tags, const uint8_t *tag, size_t length)
{
    tag_ref ref = tags->root;
    while (!is_leaf(ref)) {
        tag_node *node = node_of(ref);
        tag_ref *slot = length > node->depth ? child_slot(node, tag[node->depth]) : NULL;
        if (slot != NULL)
            ref = *slot;
        else if (node->end != NULL)
            return node->end;
        else
            ref = any_child(node);
    }
    return leaf_of(ref);
}

static size_t shared_length(const tag_leaf *leaf, const uint8_t *tag, size_t length)
{
    size_t shorter = leaf->length < length ? leaf->length : length;
    size_t shared = 0;
    while (shared < shorter && leaf->text[shared] == tag[shared])
        shared++;
    return shared;
}

/* Hang `leaf`, new in the tree, into the node at `slot`, whose tags it shares up to its depth. */
static int hang_leaf(tag_index *tags, tag_ref *slot, tag_leaf *leaf)
{
    if (leaf->length == node_of(*slot)->depth) {
        node_of(*slot)->end = leaf;
        return 0;
    }
    if (make_room(tags, slot) != 0)
        return -1;
    put_child(node_of(*slot), leaf->text[node_of(*slot)->depth], ref_of(leaf));
    return 0;
}

/* Put `leaf`, whose tag is not there yet, into the tree; `nearest` shares `shared` bytes with it. */
static int insert_leaf(tag_index *tags, tag_leaf *leaf, const tag_leaf *nearest, size_t shared)
{
    tag_ref *slot = &tags->root;
    while (!is_leaf(*slot) && node_of(*slot)->depth < shared)
        slot = child_slot(node_of(*slot), leaf->text[node_of(*slot)->depth]);
    if (!is_leaf(*slot) && node_of(*slot)->depth == shared)
        return hang_leaf(tags, slot, leaf);
    /* Everything below `slot` goes on from `shared` as the nearest leaf does. */
    tag_node *node = node_new(tags, SMALLEST, shared);
    if (node == NULL)
        return -1;
    if (nearest->length == shared)
        node->end = leaf_of(*slot);
    else
        put_child(node, nearest->text[shared], *slot);
    *slot = (tag_ref)node;
    return hang_leaf(tags, slot, leaf); /* there is room */
}

static tag_leaf *find_leaf(const tag_index *tags, const uint8_t *tag, size_t length)
{
    if (tags->root == 0)
        return NULL;
    tag_leaf *leaf = nearest_leaf(tags, tag, length);
    return leaf_is(leaf, tag, length) ? leaf : NULL;
}

/* The leaf of `tag`, made if there is none (with newest 0); NULL without memory. */
static tag_leaf *make_leaf(tag_index *tags, const uint8_t *tag, size_t length)
{
    tag_leaf *nearest = NULL;
    size_t shared = 0;
    if (tags->root != 0) {
        nearest = nearest_leaf(tags, tag, length);
        shared = shared_length(nearest, tag, length);
        if (shared == length && shared == nearest->length)
            return nearest;
    }
    tag_leaf *leaf = take(tags, leaf_bytes(length));
    if (leaf == NULL)
        return NULL;
    leaf->newest = 0;
    leaf->length = (uint16_t)length;
    memcpy(leaf->text, tag, length);
    if (nearest == NULL) {
        tags->root = ref_of(leaf);
    } else if (insert_leaf(tags, leaf, nearest, shared) != 0) {
        give_back(tags, leaf, leaf_bytes(length));
        return NULL;
    }
    ring_add(tags, leaf);
    tags->count++;
    return leaf;
}

static void drop_leaf(tag_index *tags, tag_leaf *leaf)
{
    tag_ref *slot = &tags->root, *node_slot = NULL;
    while (!is_leaf(*slot)) {
        node_slot = slot;
        if (node_of(*slot)->depth == leaf->length)
            break;
        slot = child_slot(node_of(*slot), leaf->text[node_of(*slot)->depth]);
    }
    if (node_slot == NULL) {
        tags->root = 0;
    } else {
        if (slot == node_slot)
            node_of(*node_slot)->end = NULL;
        else
            take_child(node_of(*node_slot), slot);
        tidy_node(tags, node_slot);
    }
    ring_remove(tags, leaf);
    tags->count--;
    give_back(tags, leaf, leaf_bytes(leaf->length));
}

/* --- Chains ------------------------------------------------------------------------------------------ */

/* The first live seq of a chain at or below `seq`, 0 if none. */
static uint64_t live_from(const log_index *index, uint64_t seq)
{
    while (seq >= index->first_live && seq < index->next_seq) {
        if (log_index_is_live(index, seq))
            return seq;
        uint64_t older = log_index_tag_prev(index, seq);
        if (older >= seq)
            break;
        seq = older;
    }
    return 0;
}

/* Whether the tag has a live record; the chain then starts at its newest one. */
static int leaf_lives(tag_leaf *leaf, const log_index *index)
{
    leaf->newest = live_from(index, leaf->newest);
    return leaf->newest != 0;
}

static int list_room(seq_list *list)
{
    if (list->count < list->capacity)
        return 0;
    size_t capacity = list->capacity ? 2 * list->capacity : 64;
    uint64_t *grown = realloc(list->seqs, capacity * sizeof *grown);
    if (grown == NULL)
        return -1;
    list->seqs = grown;
    list->capacity = capacity;
    return 0;
}

typedef struct { /* one question while the tree is walked */
    log_index *index;
    seq_list *found;
    uint64_t before_seq, steps, from_seq;
    seq_list dead; /* leaves to drop afterwards, by address: the tree must not change under the walk */
} tag_walk;

/* `seq` follows `newer`, the last live one that the walk met: those in between are dead. */
static void cut_dead(tag_walk *walk, tag_leaf *leaf, uint64_t newer, uint64_t seq)
{
    if (newer != 0 && log_index_tag_prev(walk->index, newer) != seq)
        log_index_set_tag_prev(walk->index, newer, seq);
    else if (newer == 0 && walk->from_seq == 0)
        leaf->newest = seq;
}

/* Collect a chain from its newest seq, or from_seq, down. */
static int collect_chain(tag_walk *walk, tag_leaf *leaf)
{
    log_index *index = walk->index;
    seq_list *found = walk->found;
    size_t first = found->count;
    uint64_t newer = 0, seq = walk->from_seq != 0 ? walk->from_seq : leaf->newest;
    for (; seq >= index->first_live && seq < index->next_seq && walk->steps > 0; walk->steps--) {
        uint64_t older = log_index_tag_prev(index, seq);
        if (log_index_is_live(index, seq)) {
            cut_dead(walk, leaf, newer, seq);
            newer = seq;
            if (seq < walk->before_seq) {
                if (list_room(found) != 0)
                    return -1;
                found->seqs[found->count++] = seq;
            }
        }
        seq = older < seq ? older : 0;
    }
    if (seq < index->first_live || seq >= index->next_seq)
        seq = 0;
    cut_dead(walk, leaf, newer, seq);
    walk->from_seq = seq;
    for (size_t low = first, high = found->count; low + 1 < high; low++) {
        uint64_t swapped = found->seqs[low];
        found->seqs[low] = found->seqs[--high];
        found->seqs[high] = swapped;
    }
    return 0;
}

/* Put `seq` into a chain that already has a newer one, at its place; twice changes nothing. */
static void link_older(tag_leaf *leaf, log_index *index, uint64_t seq)
{
    uint64_t newer = leaf->newest;
    while (newer > seq) {
        uint64_t older = live_from(index, log_index_tag_prev(index, newer));
        if (older < seq) {
            log_index_set_tag_prev(index, seq, older);
            log_index_set_tag_prev(index, newer, seq);
        }
        if (older <= seq)
            return;
        newer = older;
    }
}

/* --- What the header promises ------------------------------------------------------------------------ */

tag_index *tag_index_new(void)
{
    tag_index *tags = calloc(1, sizeof *tags);
    if (tags != NULL)
        tags->memory_bytes = allocated(sizeof *tags);
    return tags;
}

/* As deep as a tag is long. */
static void free_nodes(tag_ref ref)
{
    if (ref == 0 || is_leaf(ref))
        return;
    tag_node *node = node_of(ref);
    size_t places = node->capacity == DIRECT ? DIRECT : node->count;
    for (size_t place = 0; place < places; place++)
        free_nodes(node_children(node)[place]);
    free(node);
}

void tag_index_free(tag_index *tags)
{
    if (tags == NULL)
        return;
    free_nodes(tags->root);
    for (tag_leaf *leaf = tags->oldest; tags->count > 0; tags->count--) {
        tag_leaf *after = leaf->after;
        free(leaf);
        leaf = after;
    }
    free(tags);
}

size_t tag_index_memory(const tag_index *tags)
{
    return tags->memory_bytes;
}

uint64_t tag_index_count(const tag_index *tags)
{
    return tags->count;
}

int tag_index_push(tag_index *tags, log_index *index, const uint8_t *tag, size_t length, uint64_t seq)
{
    uint64_t count = tags->count;
    tag_leaf *leaf = make_leaf(tags, tag, length);
    if (leaf == NULL)
        return -1;
    if (leaf_lives(leaf, index) && leaf->newest >= seq) {
        link_older(leaf, index, seq);
    } else {
        log_index_set_tag_prev(index, seq, leaf->newest);
        leaf->newest = seq;
    }
    if (tags->count > count)
        tag_index_sweep(tags, index, SWEEP_PER_NEW_TAG);
    return 0;
}

void tag_index_pop(tag_index *tags, log_index *index, const uint8_t *tag, size_t length, uint64_t seq)
{
    tag_leaf *leaf = find_leaf(tags, tag, length);
    if (leaf == NULL || leaf->newest < seq)
        return; /* died and was cut out already */
    leaf->newest = live_from(index, log_index_tag_prev(index, leaf->newest));
    if (leaf->newest == 0)
        drop_leaf(tags, leaf);
}

uint64_t tag_index_sweep(tag_index *tags, log_index *index, uint64_t steps)
{
    uint64_t enough = index->live_count + SWEEP_SLACK;
    for (; steps > 0 && tags->count > enough; steps--) {
        tag_leaf *leaf = tags->oldest;
        if (leaf_lives(leaf, index))
            tags->oldest = leaf->after; /* so it is the last one now */
        else
            drop_leaf(tags, leaf);
    }
    return tags->count > enough ? tags->count - enough : 0;
}

static int visit_leaf(tag_walk *walk, tag_leaf *leaf)
{
    if (walk->steps == 0)
        return 1;
    walk->steps--;
    if (collect_chain(walk, leaf) != 0)
        return -1;
    if (leaf->newest != 0)
        return walk->from_seq != 0;
    if (list_room(&walk->dead) != 0)
        return -1;
    walk->dead.seqs[walk->dead.count++] = (uint64_t)(uintptr_t)leaf;
    return 0;
}

/* As deep as a tag is long. */
static int visit_all(tag_walk *walk, tag_ref ref)
{
    if (ref == 0)
        return 0;
    if (is_leaf(ref))
        return visit_leaf(walk, leaf_of(ref));
    tag_node *node = node_of(ref);
    size_t places = node->capacity == DIRECT ? DIRECT : node->count;
    int result = node->end != NULL ? visit_leaf(walk, node->end) : 0;
    for (size_t place = 0; place < places && result == 0; place++)
        result = visit_all(walk, node_children(node)[place]);
    return result;
}

/* Everything below is what starts with `tag`; 0 if nothing does. */
static tag_ref prefix_root(const tag_index *tags, const uint8_t *tag, size_t length)
{
    tag_ref ref = tags->root;
    while (ref != 0 && !is_leaf(ref) && node_of(ref)->depth < length) {
        tag_ref *slot = child_slot(node_of(ref), tag[node_of(ref)->depth]);
        ref = slot != NULL ? *slot : 0;
    }
    if (ref == 0)
        return 0;
    const tag_leaf *leaf = nearest_leaf(tags, tag, length);
    return leaf->length >= length && memcmp(leaf->text, tag, length) == 0 ? ref : 0;
}

int tag_index_find(tag_index *tags, log_index *index, const uint8_t *tag, size_t length, int prefix,
                   uint64_t before_seq, uint64_t steps, uint64_t *from_seq, seq_list *found)
{
    tag_walk walk = {index, found, before_seq, steps, *from_seq, {0}};
    int result = 0;
    if (prefix) {
        result = visit_all(&walk, prefix_root(tags, tag, length));
    } else {
        tag_leaf *leaf = find_leaf(tags, tag, length);
        if (leaf != NULL)
            result = visit_leaf(&walk, leaf);
    }
    for (size_t place = 0; place < walk.dead.count; place++)
        drop_leaf(tags, (tag_leaf *)(uintptr_t)walk.dead.seqs[place]);
    free(walk.dead.seqs);
    *from_seq = walk.from_seq;
    return result;
}

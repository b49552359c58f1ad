
#ifndef HOG_NODE_ONLY

/* ---- packets --------------------------------------------------------------------------------- */

static void hog_put(uint8_t *raw, uint64_t value, int bytes) /* little endian */
{
    for (int i = 0; i < bytes; i++) raw[i] = (uint8_t)(value >> (8 * i) & 0xff);
}

static uint64_t hog_get(const uint8_t *raw, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) value |= (uint64_t)raw[i] << (8 * i);
    return value;
}

static void hog_put_double(uint8_t *raw, double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    hog_put(raw, bits, 8);
}

static double hog_get_double(const uint8_t *raw)
{
    uint64_t bits = hog_get(raw, 8);
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void hog_put_float(uint8_t *raw, float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    hog_put(raw, bits, 4);
}

static float hog_get_float(const uint8_t *raw)
{
    uint32_t bits = (uint32_t)hog_get(raw, 4);
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* CRC-32, as in zlib, of the fields of a packet and of what follows its checksum. */
static uint32_t hog_checksum(const uint8_t *raw, size_t size)
{
    uint32_t sum = 0xffffffffu;
    for (size_t i = 0; i < size; i++) {
        if (i == HOG_HEADER_BYTES - 4) i = HOG_HEADER_BYTES;
        sum ^= raw[i];
        for (int bit = 0; bit < 8; bit++) sum = sum >> 1 ^ (sum & 1 ? 0xedb88320u : 0);
    }
    return ~sum;
}

int hog_read(const uint8_t *raw, size_t size, hog_header *header)
{
    if (size < HOG_HEADER_BYTES || raw[0] != HOG_VERSION) return HOG_BAD;
    if (raw[1] > 1 || raw[2] != HOG_CODE || raw[3] != HOG_WIDTH) return HOG_BAD;
    if (hog_get(raw + 4, 4) != HOG_MODEL_NUMBER) return HOG_BAD;
    if (size != (raw[1] == HOG_HELLO ? HOG_HELLO_BYTES : HOG_DATA_BYTES)) return HOG_BAD;
    if (hog_get(raw + HOG_HEADER_BYTES - 4, 4) != hog_checksum(raw, size)) return HOG_BAD;
    header->kind = raw[1];
    header->incarnation = (uint32_t)hog_get(raw + 8, 4);
    header->sequence = (uint32_t)hog_get(raw + 12, 4);
    header->to = (uint32_t)hog_get(raw + 16, 4);
    header->revision = (uint16_t)hog_get(raw + 20, 2);
    header->known = (uint16_t)hog_get(raw + 22, 2);
    header->time = hog_get_double(raw + 24);
    header->calm = hog_get_float(raw + 32);
    if (!(fabs(header->time) < 1e12) || !(header->calm >= 0)) return HOG_BAD;
    return header->kind;
}

int hog_read_numbers(const uint8_t *raw, const hog_header *header, hog_real *numbers)
{
    int hello = header->kind == HOG_HELLO, count = hello ? HOG_HELLO_NUMBERS : HOG_NUMBERS;
    raw += HOG_HEADER_BYTES;
    for (int i = 0; i < count; i++) {
        if (hello || !HOG_SINGLE) {
            double x = hog_get_double(raw);
            if (HOG_SINGLE && fabs(x) > 3.4e38) return 0; /* too large for a float */
            numbers[i] = (hog_real)x;
            raw += 8;
        } else {
            numbers[i] = (hog_real)hog_get_float(raw);
            raw += 4;
        }
    }
    return hog_all_finite(numbers, count) && (!hello || numbers[0] >= 1);
}

size_t hog_write(const hog_header *header, const hog_real *numbers, uint8_t *raw)
{
    int hello = header->kind == HOG_HELLO, count = hello ? HOG_HELLO_NUMBERS : HOG_NUMBERS;
    uint8_t *at = raw + HOG_HEADER_BYTES;
    raw[0] = HOG_VERSION;
    raw[1] = (uint8_t)header->kind;
    raw[2] = HOG_CODE;
    raw[3] = HOG_WIDTH;
    hog_put(raw + 4, HOG_MODEL_NUMBER, 4);
    hog_put(raw + 8, header->incarnation, 4);
    hog_put(raw + 12, header->sequence, 4);
    hog_put(raw + 16, header->to, 4);
    hog_put(raw + 20, header->revision, 2);
    hog_put(raw + 22, header->known, 2);
    hog_put_double(raw + 24, header->time);
    hog_put_float(raw + 32, header->calm);
    for (int i = 0; i < count; i++) {
        if (hello || !HOG_SINGLE) {
            hog_put_double(at, (double)numbers[i]);
            at += 8;
        } else {
            hog_put_float(at, (float)numbers[i]);
            at += 4;
        }
    }
    hog_put(raw + HOG_HEADER_BYTES - 4, hog_checksum(raw, (size_t)(at - raw)), 4);
    return (size_t)(at - raw);
}

/* ---- the agent ------------------------------------------------------------------------------- */

#define HOG_HELLO_PERIOD 0.2 /* seconds between two hellos with the same content */
#define HOG_REFRESH 5.0 /* seconds after which everybody is told the same content anew */
#define HOG_TRANSIT_WINDOW 30.0

/* Neighbours must hear another hello. */
static void hog_agent_changed(hog_agent *agent, double now)
{
    agent->changed = 1;
    agent->unsettled = now;
    agent->calm = 0;
}

/* Whether a revision is before the known one; revisions count on and wrap around. */
static int hog_agent_behind(uint16_t revision, uint16_t known)
{
    return (uint16_t)(revision - known) >= 32768u;
}

int hog_agent_init(hog_agent *agent, const hog_real *features, uint32_t incarnation, double now)
{
    memset(agent, 0, sizeof *agent);
    agent->incarnation = incarnation ? incarnation : 1;
    agent->begun = agent->unsettled = now;
    agent->renewed = -HUGE_VAL;
    agent->lease = 2;
    agent->settle_after = 1;
    agent->tolerance = HOG_TOLERANCE;
    return hog_init(&agent->node, features);
}

int hog_agent_link(
    hog_agent *agent, int slot, hog_real weight, const hog_real *edge_features, double now)
{
    hog_link *link;
    if (slot < 0 || slot >= HOG_SLOTS || agent->link[slot].open) return 0;
    if (!(weight >= 0) || !isfinite(weight)) return 0;
    link = &agent->link[slot];
#if HOG_EDGE_FEATURES
    if (!edge_features || !hog_all_finite(edge_features, HOG_EDGE_FEATURES)) return 0;
#else
    if (edge_features) return 0;
#endif
    memset(link, 0, sizeof *link);
    link->open = 1;
    link->weight = weight;
    link->since = now;
    link->last = link->heard = link->greeted = -HUGE_VAL;
    link->transit[0] = link->transit[1] = HUGE_VAL;
#if HOG_EDGE_FEATURES
    hog_copy(edge_features, HOG_EDGE_FEATURES, link->edge_features);
#endif
    hog_agent_changed(agent, now);
    return 1;
}

int hog_agent_unlink(hog_agent *agent, int slot, double now)
{
    if (slot < 0 || slot >= HOG_SLOTS || !agent->link[slot].open) return 0;
    memset(&agent->link[slot], 0, sizeof agent->link[slot]);
    hog_leave(&agent->node, slot);
    hog_agent_changed(agent, now);
    return 1;
}

int hog_agent_set_features(hog_agent *agent, const hog_real *features, double now)
{
    hog_real before[HOG_FEATURES];
    hog_copy(agent->node.features, HOG_FEATURES, before);
    if (!hog_set_features(&agent->node, features)) return 0;
    if (memcmp(before, agent->node.features, sizeof before)) hog_agent_changed(agent, now);
    return 1;
}

/* The neighbour no longer takes part. */
static void hog_agent_part(hog_agent *agent, int slot, double now)
{
    agent->link[slot].mutual = agent->link[slot].numbered = 0;
    if (hog_leave(&agent->node, slot)) hog_agent_changed(agent, now);
}

/* Whether another incarnation has replaced this one. */
static int hog_agent_former(const hog_link *link, uint32_t incarnation)
{
    int count = link->retired < HOG_FORMER ? link->retired : HOG_FORMER;
    if (incarnation == link->incarnation) return 0;
    for (int i = 0; i < count; i++)
        if (link->former[i] == incarnation) return 1;
    return 0;
}

/* The least difference of arrival and sending of late: clocks of two machines may differ. */
static void hog_agent_transit(hog_link *link, double now, double seen)
{
    double window = floor(now / HOG_TRANSIT_WINDOW);
    if (window > link->window) {
        link->transit[0] = window > link->window + 1 ? HUGE_VAL : link->transit[1];
        link->transit[1] = HUGE_VAL;
        link->window = window;
    }
    if (seen < link->transit[1]) link->transit[1] = seen;
}

int hog_agent_receive(hog_agent *agent, int slot, const uint8_t *raw, size_t size, double now)
{
    hog_header header;
    hog_real numbers[HOG_NUMBERS > HOG_HELLO_NUMBERS ? HOG_NUMBERS : HOG_HELLO_NUMBERS];
    hog_link *link;
    int living;
    if (slot < 0 || slot >= HOG_SLOTS || !agent->link[slot].open) return 0;
    link = &agent->link[slot];
    if (hog_read(raw, size, &header) == HOG_BAD) return 0;
    if (!hog_read_numbers(raw, &header, numbers)) return 0;
    living = now - link->last <= agent->lease; /* only then are older packets refused */
    if (!header.incarnation || header.incarnation == agent->incarnation) return 0;
    if (living && hog_agent_former(link, header.incarnation)) return 0;
    if (header.kind == HOG_HELLO) {
        if (!link->met || header.incarnation != link->incarnation) {
            if (link->met) link->former[link->retired++ % HOG_FORMER] = link->incarnation;
            hog_agent_part(agent, slot, now);
            link->incarnation = header.incarnation;
            link->transit[0] = link->transit[1] = HUGE_VAL;
            link->fresh = 1;
        } else if (living && hog_agent_behind(header.revision, link->revision)) {
            return 0;
        } else if (memcmp(numbers, link->hello, sizeof link->hello)) {
            if (living && header.revision == link->revision) return 0;
            link->fresh = 1;
        }
        link->met = 1;
        link->revision = header.revision;
        hog_copy(numbers, HOG_HELLO_NUMBERS, link->hello);
    } else {
        uint32_t ahead = header.sequence - link->sequence;
        int known = link->numbered && now - link->heard <= agent->lease;
        if (!link->met || header.incarnation != link->incarnation) return 0;
        if (known && !(0 < ahead && ahead < 2147483648u)) return 0;
        link->numbered = hog_hear(&agent->node, slot, numbers); /* 0: it takes no part yet */
        link->sequence = header.sequence;
        link->sent = header.time;
        link->calm = header.calm;
        link->heard = now;
    }
    link->last = now;
    if (!link->numbered || header.sequence - link->sequence < 2147483648u) {
        link->mutual = header.to == agent->incarnation;
        link->known = header.known;
    }
    hog_agent_transit(link, now, now - header.time);
    return 1;
}

/* Whether a neighbour is known and was heard within the lease. */
static int hog_agent_hears(const hog_agent *agent, int slot, double now)
{
    return agent->link[slot].met && now - agent->link[slot].last <= agent->lease;
}

/* Neighbours join and leave. */
static void hog_agent_meet(hog_agent *agent, double now)
{
    for (int s = 0; s < HOG_SLOTS; s++) {
        hog_link *link = &agent->link[s];
        const hog_real *edge = 0;
#if HOG_EDGE_FEATURES
        hog_real features[HOG_JOIN_FEATURES];
#endif
        int joined = agent->node.near[s].taken;
        if (!link->open) continue;
        if (!link->mutual || !hog_agent_hears(agent, s, now)) {
            if (joined) hog_agent_part(agent, s, now);
            continue;
        }
        if (joined && !link->fresh) continue;
#if HOG_EDGE_FEATURES
        hog_copy(link->edge_features, HOG_EDGE_FEATURES, features);
        hog_copy(
            link->hello + 1 + HOG_FEATURES, HOG_JOIN_FEATURES - HOG_EDGE_FEATURES,
            features + HOG_EDGE_FEATURES);
        edge = features;
#endif
        hog_join(&agent->node, s, link->weight, link->hello + 1, link->hello[0], edge);
        link->fresh = 0;
        agent->unsettled = now;
        if (!joined) hog_agent_changed(agent, now);
    }
}

/* Whether a neighbour knows this agent's features and degree, in this revision or in an earlier
 * one. Revisions go from 1 to 65535 and begin again. */
static int hog_agent_confirmed(const hog_agent *agent, const hog_link *link)
{
    long behind = (long)agent->revision - (long)link->known;
    if (behind < 0) behind += 65535;
    return link->known && behind <= agent->repeats;
}

int hog_agent_silent(const hog_agent *agent, int slot, double now)
{
    if (slot < 0 || slot >= HOG_SLOTS || !agent->link[slot].open) return 0;
    return !agent->node.near[slot].taken && now - agent->link[slot].since > agent->lease;
}

/* Seconds for which no node in reach was unsettled, without what came through one slot. */
static double hog_agent_calm(const hog_agent *agent, double now, int without)
{
    double calm = now - agent->unsettled, silence = agent->settle_after / 2;
    if (silence > agent->lease) silence = agent->lease;
    if (!agent->updates) return 0;
    for (int s = 0; s < HOG_SLOTS; s++) {
        const hog_link *link = &agent->link[s];
        double theirs = 0, least, age;
        if (!link->open || hog_agent_silent(agent, s, now)) continue;
        if (agent->node.near[s].taken && !hog_agent_confirmed(agent, link)) return 0;
        if (s == without) continue;
        if (link->numbered && now - link->heard <= silence) { /* then it takes part */
            least = link->transit[0] < link->transit[1] ? link->transit[0] : link->transit[1];
            age = now - link->sent - least;
            if (!(age > 0)) age = 0;
            if (age > agent->settle_after / 4) age = agent->settle_after / 4;
            theirs = (double)link->calm + age;
        }
        if (theirs < calm) calm = theirs;
    }
    return calm > 0 ? calm : 0;
}

int hog_agent_turn(hog_agent *agent, double now)
{
    agent->turns++;
    hog_agent_meet(agent, now);
    agent->ready = 1;
    for (int s = 0; s < HOG_SLOTS; s++) {
        const hog_link *link = &agent->link[s];
        if (link->open && !agent->node.near[s].taken) agent->ready = 0;
        if (link->mutual && hog_agent_behind(agent->revision, link->known)) {
            agent->revision = link->known; /* else the next hello would be old to the neighbour */
            agent->changed = 1;
        }
    }
    if (agent->changed || now - agent->renewed >= HOG_REFRESH) {
        agent->revision = (uint16_t)(agent->revision % 65535u + 1u); /* 0: no hello is known */
        agent->renewed = now;
        if (agent->changed) agent->repeats = 0;
        else if (agent->repeats < 32768u) agent->repeats++;
        agent->changed = 0;
    }
    if (now - agent->begun > agent->lease) agent->ready = 1;
    if (!agent->ready) return 0;
    hog_update(&agent->node);
    agent->updates++;
    if (!(hog_residual(&agent->node) <= agent->tolerance)) agent->unsettled = now;
    agent->calm = hog_agent_calm(agent, now, -1);
    return 1;
}

static void hog_agent_header(
    const hog_agent *agent, int slot, int kind, double now, hog_header *header)
{
    const hog_link *link = &agent->link[slot];
    const double calm = hog_agent_calm(agent, now, slot);
    const int hears = hog_agent_hears(agent, slot, now);
    header->kind = kind;
    header->incarnation = agent->incarnation;
    header->sequence = agent->turns;
    header->to = hears ? link->incarnation : 0;
    header->revision = agent->revision;
    header->known = hears ? link->revision : 0;
    header->time = now;
    header->calm = calm < 3e38 ? (float)calm : 3e38f;
}

size_t hog_agent_hello(hog_agent *agent, int slot, uint8_t *raw, double now)
{
    hog_real numbers[HOG_HELLO_NUMBERS];
    hog_header header;
    hog_link *link;
    int known;
    if (slot < 0 || slot >= HOG_SLOTS || !agent->link[slot].open) return 0;
    link = &agent->link[slot];
    known = agent->ready && agent->node.near[slot].taken && link->known == agent->revision;
    if (link->told == agent->revision && (known || now - link->greeted < HOG_HELLO_PERIOD))
        return 0;
    link->greeted = now;
    link->told = agent->revision;
    numbers[0] = hog_degree(&agent->node);
    hog_copy(agent->node.features, HOG_FEATURES, numbers + 1);
#if HOG_EDGE_FEATURES
    hog_copy(
        link->edge_features, HOG_JOIN_FEATURES - HOG_EDGE_FEATURES, numbers + 1 + HOG_FEATURES);
#endif
    hog_agent_header(agent, slot, HOG_HELLO, now, &header);
    return hog_write(&header, numbers, raw);
}

size_t hog_agent_data(const hog_agent *agent, int slot, uint8_t *raw, double now)
{
    hog_real numbers[HOG_NUMBERS];
    hog_header header;
    if (!agent->ready || !hog_say(&agent->node, slot, numbers)) return 0;
    hog_agent_header(agent, slot, HOG_DATA, now, &header);
    return hog_write(&header, numbers, raw);
}

int hog_agent_settled(const hog_agent *agent)
{
    return agent->calm >= agent->settle_after;
}

#endif /* HOG_NODE_ONLY */

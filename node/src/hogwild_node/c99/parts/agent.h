#ifndef HOG_NODE_ONLY /* define it to leave out packets and agents */

/* ---- packets: the bytes that hogwild-agent sends and reads ----------------------------------- */

#define HOG_HEADER_BYTES 40
#define HOG_HELLO_NUMBERS (1 + HOG_FEATURES + HOG_JOIN_FEATURES - HOG_EDGE_FEATURES)
#define HOG_HELLO_BYTES (HOG_HEADER_BYTES + 8 * HOG_HELLO_NUMBERS)
#define HOG_DATA_BYTES (HOG_HEADER_BYTES + (HOG_SINGLE ? 4 : 8) * HOG_NUMBERS)
#define HOG_LONGEST (HOG_HELLO_BYTES > HOG_DATA_BYTES ? HOG_HELLO_BYTES : HOG_DATA_BYTES)

enum { HOG_HELLO = 0, HOG_DATA = 1, HOG_BAD = -1 };

/* The first 40 bytes of a packet, but for its checksum. */
typedef struct {
    int kind;             /* HOG_HELLO or HOG_DATA */
    uint32_t incarnation; /* of the sender: a random number from 1 on, drawn when it starts */
    uint32_t sequence;    /* the sender's count of turns */
    uint32_t to;          /* the receiver's incarnation, if the sender hears it; else 0 */
    uint16_t revision;    /* of the sender's hello */
    uint16_t known;       /* the newest revision of the receiver's hello that the sender knows */
    double time;          /* of the sender's update, in seconds, by the sender's clock */
    float calm;           /* seconds for which no node in reach of the sender was unsettled */
} hog_header;

/* Read the header of a packet. Returns HOG_HELLO or HOG_DATA, or HOG_BAD if the packet has another
 * version, model, rule, precision or size, a wrong checksum, or numbers that are not finite. */
int hog_read(const uint8_t *raw, size_t size, hog_header *header);

/* The numbers of a packet that hog_read accepted: of a hello the degree, the features, and those of
 * the edge to the sender if they travel [HOG_HELLO_NUMBERS], of data the embedding and the letter [HOG_NUMBERS]. Returns 0 if one of them
 * is not finite as a hog_real, or if a degree is below one. */
int hog_read_numbers(const uint8_t *raw, const hog_header *header, hog_real *numbers);

/* Write a packet with these numbers. Returns its size: HOG_HELLO_BYTES or HOG_DATA_BYTES. */
size_t hog_write(const hog_header *header, const hog_real *numbers, uint8_t *raw);

/* ---- an agent: a node that speaks with agents in Python and in C ----------------------------- */

#define HOG_FORMER 4 /* incarnations of a neighbour that are remembered as gone */

/* What an agent knows of one neighbour. */
typedef struct {
    int open;             /* whether there is a link in this slot */
    int met;              /* whether the neighbour has said hello */
    int mutual;           /* whether the neighbour says that it hears this agent */
    int numbered;         /* whether sequence, of the newest data, is known */
    int fresh;            /* whether the node does not know the newest hello yet */
    int retired;          /* former incarnations seen */
    uint32_t incarnation, sequence, former[HOG_FORMER];
    uint16_t revision;    /* of the neighbour's hello */
    uint16_t known;       /* if mutual: the revision of this agent's hello it knows */
    uint16_t told;        /* the revision that this agent told it last */
    float calm;
    double since, last, heard, sent, greeted, window, transit[2];
    hog_real weight, hello[HOG_HELLO_NUMBERS];
#if HOG_EDGE_FEATURES
    hog_real edge_features[HOG_EDGE_FEATURES];
#endif
} hog_link;

/* Times are in seconds, by any clock that does not jump. */
typedef struct {
    hog_node node;
    hog_link link[HOG_SLOTS];
    uint32_t incarnation, turns, updates;
    uint16_t revision, repeats; /* repeats: revisions before this one with the same content */
    int changed;          /* whether the next hello differs from the last one */
    int ready;            /* whether the last turn made an update */
    double begun, unsettled, renewed;
    double lease;         /* silence after which a neighbour no longer takes part; default: 2 */
    double settle_after;  /* calm after which the agent is settled: ten turns or more; default: 1 */
    hog_real tolerance;   /* residual up to which the node counts as settled */
    double calm;
} hog_agent;

/* Start an agent without neighbours. incarnation is a random number from 1 on, another one at each
 * start. Returns 0 if the features are not finite. */
int hog_agent_init(hog_agent *agent, const hog_real *features, uint32_t incarnation, double now);

/* Open a link to a neighbour in a free slot; edge_features is a null pointer if the model reads
 * none. The neighbour takes part as soon as both have heard each other. */
int hog_agent_link(
    hog_agent *agent, int slot, hog_real weight, const hog_real *edge_features, double now);

/* Close a link. */
int hog_agent_unlink(hog_agent *agent, int slot, double now);

/* The agent's features are these from now on. */
int hog_agent_set_features(hog_agent *agent, const hog_real *features, double now);

/* Take in a packet that came from the neighbour in a slot. Returns 0 if the packet was dropped: it
 * is damaged, old, of another model or of another precision. */
int hog_agent_receive(
    hog_agent *agent, int slot, const uint8_t *raw, size_t size, double now);

/* One turn: neighbours join and leave, then the node makes an update. Returns whether it did: at
 * first an agent waits for hellos. After each turn, call the next two functions for every slot. */
int hog_agent_turn(hog_agent *agent, double now);

/* The hello for a neighbour [HOG_LONGEST]; returns its size, or 0 if none is due. */
size_t hog_agent_hello(hog_agent *agent, int slot, uint8_t *raw, double now);

/* The data for a neighbour [HOG_LONGEST]; returns its size, or 0 if there are none. */
size_t hog_agent_data(const hog_agent *agent, int slot, uint8_t *raw, double now);

/* Whether the neighbour in a slot has had a lease's time and takes no part, because nothing came
 * from it for longer than the lease or because it does not hear the agent. */
int hog_agent_silent(const hog_agent *agent, int slot, double now);

/* Whether no node in reach was unsettled for settle_after seconds, on the graph without the
 * neighbours for which hog_agent_silent is true. */
int hog_agent_settled(const hog_agent *agent);

#endif /* HOG_NODE_ONLY */

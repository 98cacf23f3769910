/* Prints the results of the simulated job as JSON. */
#include "job.h"

#include <math.h>
#include <simgrid/engine.h>
#include <stdio.h>

static double seconds_of(const struct program *p, int s) {
    return set.meet ? p->ended[s] - p->began[s] : p->began[s + 1] - p->began[s];
}

static double front_of(const struct program *p, int s) { return p->front[s] - p->submitted[s]; }

/* Prints, for each measured step, the longest time of all ranks. */
static void print_worst(const char *name, double (*of)(const struct program *p, int s)) {
    printf("\"%s\": [", name);
    for (int s = (int)set.warm; s < (int)set.steps - !set.meet; s++) {
        double worst = 0;
        for (int r = 0; r < job.size; r++) worst = fmax(worst, of(&job.programs[r], s));
        printf("%s%.9f", s > (int)set.warm ? ", " : "", worst);
    }
    printf("], ");
}

static void print_counts(void) {
    double steps = set.steps - set.warm;
    printf("\"ranks\": [");
    for (int r = 0; r < job.size; r++) {
        struct sim_counts c = job.after[r], b = job.before[r];
        printf("%s[%.0f, %.2f, %.2f, %.2f]", r ? ", " : "", (double)(c.bytes - b.bytes) / steps,
               (double)(c.data - b.data) / steps, (double)(c.sent - b.sent) / steps,
               (double)(c.received - b.received) / steps);
    }
    printf("]");
}

static void print_failures(void) {
    int failed = 0, first = -1;
    for (int r = job.size - 1; r >= 0; r--)
        if (job.programs[r].error.code) failed++, first = r;
    printf("\"failed\": %d, \"error\": \"%s\", ", failed,
           first < 0 ? "" : job.programs[first].error.text);
}

void print_all(void) {
    printf("{");
    print_worst("steps", seconds_of);
    if (set.meet) print_worst("front", front_of);
    printf("\"alpha\": %g, \"first\": %g, \"next\": %g, \"beta\": %g, \"message\": %g, \"far\": "
           "%g, \"depth\": %zu, \"chosen\": %d, "
           "\"choices\": \"%s\", \"ended\": %.9f, ",
           job.cost.alpha, job.cost.first, job.cost.next, job.cost.beta, job.cost.message,
           job.cost.far, job.depth, (int)job.chosen, job.choices, simgrid_get_clock());
    print_failures();
    print_counts();
    puts("}");
}

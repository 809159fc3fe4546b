/* The incident: manager.c with a merge by max(), in which a late status revives a room that has failed, since
   max(Failed, Transferring) is Transferring. Every other rule is the right one.

   cc -O2 -o manager_max manager_max.c && kvlatch conform --exec ./manager_max */

#define BY_MAX 1
#include "manager.c"

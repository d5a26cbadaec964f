/* A stand-in for Open MPI's library: it begins slowly, and counts how often it was begun. */
#include <stddef.h>
#include <unistd.h>

static int begun;
char ompi_mpi_comm_world, ompi_mpi_byte, ompi_mpi_errors_return;

int fake_begun(void) { return __atomic_load_n(&begun, __ATOMIC_SEQ_CST); }

int MPI_Initialized(int* flag) {
  *flag = fake_begun() > 0;
  return 0;
}
int MPI_Finalized(int* flag) { return *flag = 0; }
int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  (void)argc, (void)argv;
  usleep(20000); /* whoever looks meanwhile finds that it has not begun */
  __atomic_add_fetch(&begun, 1, __ATOMIC_SEQ_CST);
  *provided = required;
  return 0;
}
int MPI_Finalize(void) { return 0; }
int MPI_Comm_dup(void* comm, void** duplicate) {
  *duplicate = comm;
  return 0;
}
int MPI_Comm_free(void** comm) {
  *comm = NULL;
  return 0;
}
int MPI_Comm_rank(void* comm, int* rank) {
  (void)comm;
  return *rank = 0;
}
int MPI_Comm_size(void* comm, int* size) {
  (void)comm;
  *size = 1;
  return 0;
}
int MPI_Comm_set_errhandler(void* comm, void* handler) {
  (void)comm, (void)handler;
  return 0;
}
int MPI_Allgather(const void* send, int send_count, void* send_type, void* receive,
                  int receive_count, void* receive_type, void* comm) {
  (void)send, (void)send_count, (void)send_type, (void)receive, (void)receive_count;
  (void)receive_type, (void)comm;
  return 0;
}
int MPI_Error_string(int code, char* text, int* length) {
  (void)code;
  text[0] = 0;
  return *length = 0;
}
